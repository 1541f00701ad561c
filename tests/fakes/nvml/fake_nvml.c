/* A fake of the C library libnvidia-ml.so.1, behind the real Python binding (nvidia-ml-py, module pynvml).
 *
 * It stands in only where the driver would answer, so the binding's loading, calling and error handling stay real.
 * Its answers come from the environment:
 *   FAKE_NVML_PRODUCTS      product names separated by ';' (none by default)
 *   FAKE_NVML_INIT_ERROR    nvmlReturn_t of nvmlInit
 *   FAKE_NVML_HANDLE_ERROR, FAKE_NVML_NAME_ERROR, FAKE_NVML_UUID_ERROR, FAKE_NVML_MEMORY_ERROR,
 *   FAKE_NVML_PCI_ERROR, FAKE_NVML_POWER_ERROR, FAKE_NVML_CLOCK_ERROR, FAKE_NVML_MIG_ERROR, FAKE_NVML_DRIVER_ERROR
 *                           "CODE" for every card, or "CODE@INDEX" for one of them
 *   FAKE_NVML_MIG           1: MIG mode is enabled; 0 (default): it is disabled
 *   FAKE_NVML_CALLS         a file that gets one line for every nvmlInit and nvmlShutdown
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { char bus_id_legacy[16]; unsigned domain, bus, device, pci_device, pci_subsystem; char bus_id[32]; } PciInfo;
typedef struct { unsigned long long total, free, used; } Memory;

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, INSUFFICIENT_SIZE = 7 };
enum { MOST_CARDS = 16 };

static int initialized;
static int handles[MOST_CARDS]; /* a handle is the address of its card's element */

static void record(const char *call) {
    const char *path = getenv("FAKE_NVML_CALLS");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (file) {
        fprintf(file, "%s\n", call);
        fclose(file);
    }
}

static int error_of(const char *variable, int index) {
    const char *text = getenv(variable);
    if (!text) return SUCCESS;
    const char *at = strchr(text, '@');
    return at && atoi(at + 1) != index ? SUCCESS : atoi(text);
}

static unsigned count_products(void) {
    const char *text = getenv("FAKE_NVML_PRODUCTS");
    if (!text || !*text) return 0;
    unsigned count = 1;
    for (; *text; text++) count += *text == ';';
    return count > MOST_CARDS ? MOST_CARDS : count;
}

static int index_of(const void *handle) { return (int)((const int *)handle - handles); }

static int copy(char *target, unsigned size, const char *text) {
    if (strlen(text) >= size) return INSUFFICIENT_SIZE;
    strcpy(target, text);
    return SUCCESS;
}

/* What every query of a card begins with. */
static int card_error(const void *handle, const char *variable) {
    if (!initialized) return UNINITIALIZED;
    return error_of(variable, index_of(handle));
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    int error = error_of("FAKE_NVML_INIT_ERROR", -1);
    if (error) return error;
    initialized++;
    record("init");
    return SUCCESS;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) {
    if (!initialized) return UNINITIALIZED;
    initialized--;
    record("shutdown");
    return SUCCESS;
}

const char *nvmlErrorString(int error) {
    switch (error) {
    case 0: return "Success";
    case 1: return "Uninitialized";
    case 2: return "Invalid Argument";
    case 3: return "Not Supported";
    case 4: return "Insufficient Permissions";
    case 9: return "Driver Not Loaded";
    case 13: return "Function Not Found";
    case 15: return "GPU is lost";
    case 18: return "Driver/library version mismatch";
    case 28: return "GPU not found";
    default: return "Unknown Error";
    }
}

int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    if (!initialized) return UNINITIALIZED;
    int error = error_of("FAKE_NVML_DRIVER_ERROR", -1);
    return error ? error : copy(version, length, "570.133.20");
}

int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    if (!initialized) return UNINITIALIZED;
    *version = 12080;
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    if (!initialized) return UNINITIALIZED;
    *count = count_products();
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    if (!initialized) return UNINITIALIZED;
    if (index >= count_products()) return INVALID_ARGUMENT;
    *handle = &handles[index];
    return error_of("FAKE_NVML_HANDLE_ERROR", (int)index);
}

int nvmlDeviceGetName(void *handle, char *name, unsigned length) {
    int error = card_error(handle, "FAKE_NVML_NAME_ERROR");
    if (error) return error;
    const char *start = getenv("FAKE_NVML_PRODUCTS");
    for (int index = index_of(handle); index > 0; index--) start = strchr(start, ';') + 1;
    size_t size = strcspn(start, ";");
    if (size >= length) return INSUFFICIENT_SIZE;
    memcpy(name, start, size);
    name[size] = '\0';
    return SUCCESS;
}

int nvmlDeviceGetUUID(void *handle, char *uuid, unsigned length) {
    int error = card_error(handle, "FAKE_NVML_UUID_ERROR");
    if (error) return error;
    char text[48];
    snprintf(text, sizeof text, "GPU-%08d-0000-0000-0000-000000000000", index_of(handle));
    return copy(uuid, length, text);
}

int nvmlDeviceGetPciInfo_v3(void *handle, PciInfo *info) {
    int error = card_error(handle, "FAKE_NVML_PCI_ERROR");
    if (error) return error;
    memset(info, 0, sizeof *info);
    info->bus = (unsigned)index_of(handle) + 1;
    snprintf(info->bus_id_legacy, sizeof info->bus_id_legacy, "0000:%02X:00.0", info->bus);
    snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02X:00.0", info->bus);
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(void *handle, Memory *memory) {
    int error = card_error(handle, "FAKE_NVML_MEMORY_ERROR");
    if (error) return error;
    memory->total = 16ULL << 30;
    memory->used = 1ULL << 30;
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetPowerManagementLimit(void *handle, unsigned *milliwatts) {
    int error = card_error(handle, "FAKE_NVML_POWER_ERROR");
    if (error) return error;
    *milliwatts = 70000;
    return SUCCESS;
}

int nvmlDeviceGetMaxClockInfo(void *handle, int type, unsigned *megahertz) {
    int error = card_error(handle, "FAKE_NVML_CLOCK_ERROR");
    if (error) return error;
    /* Each clock another number, so that asking for the wrong one shows: graphics, SM, memory, video. */
    static const unsigned clocks[] = {1500, 1590, 5001, 1470};
    if (type < 0 || type > 3) return INVALID_ARGUMENT;
    *megahertz = clocks[type];
    return SUCCESS;
}

int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) {
    int error = card_error(handle, "FAKE_NVML_MIG_ERROR");
    if (error) return error;
    const char *mode = getenv("FAKE_NVML_MIG");
    *current = mode ? (unsigned)atoi(mode) : 0;
    *pending = !*current; /* the other one, so that reading the wrong one shows */
    return SUCCESS;
}
