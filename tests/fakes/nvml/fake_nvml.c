/* A fake of the C library libnvidia-ml.so.1, behind the real Python binding (nvidia-ml-py, module pynvml).
 *
 * It stands in only where the driver would answer, so the binding's loading, calling and error handling stay real.
 *
 * FAKE_NVML_SCRIPT names a file that says what it answers; gpus.py writes it. It is read at the first call, and again
 * where the variable names another file in the same process: all begins anew then. One line each, fields separated by one
 * blank, the last one up to the end of the line:
 *   driver VERSION                        cuda NUMBER
 *   epoch NANOSECONDS                     CLOCK_MONOTONIC from which milliseconds count; else the first nvmlInit
 *   gpu PARENT                           begins the next gpu; PARENT is the number of the gpu that it is a slice of,
 *                                         by lines `gpu` from 0, or -1
 *   fact KEY WHEN VALUE                   of the gpu that was begun last; VALUE `unsupported` is answered by error 3
 *   event TYPE DATA WHEN                  of that gpu: one event for nvmlEventSetWait_v2; type and data are numbers
 *   error FUNCTION GPU CODE WHEN         FUNCTION as in nvml.h, with its suffix; GPU as in PARENT, -1 for any
 * WHEN is `always`; `call:N`, from the N-th call of the function on that gpu (of an error with gpu -1: on any);
 * `only:N`, in that call alone; or `ms:N`, from N milliseconds on. Of several facts of one key the last one that holds
 * is the answer. A fact that is not there is unsupported.
 *
 * Without a script there is no gpu. FAKE_NVML_TRACE may name a file that gets the name of every function that is called.
 */

#define _GNU_SOURCE
#include <limits.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned pid; unsigned long long memory; unsigned gpu_instance, compute_instance; } Process;
typedef struct { void *device; unsigned long long type, data; unsigned gpu_instance, compute_instance; } EventData;

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    TIMEOUT = 10,
    UNKNOWN = 999,
};
enum { MOST_GPUS = 32, MOST_FACTS = 2048, MOST_EVENTS = 64, MOST_ERRORS = 64, MOST_FUNCTIONS = 96, MOST_SETS = 16 };

typedef enum { ALWAYS, FROM_CALL, ONLY_CALL, FROM_MS } Kind;
typedef struct { Kind kind; long long n; } When;
typedef struct { int gpu; char key[40]; When when; char value[512]; } Fact;
typedef struct { int gpu; unsigned long long type, data; When when; } Event;
typedef struct { char function[64]; int gpu, code; When when; } Error;
typedef struct { const char *function; long long calls[MOST_GPUS + 1]; } Calls; /* the last one: on any gpu */
typedef struct { int used; unsigned long long types[MOST_GPUS]; char delivered[MOST_EVENTS]; } EventSet;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int loaded, initialized;
static char script[4096];
static char driver[80] = "570.133.20";
static int cuda = 12080;
static long long epoch_ns;
static int parents[MOST_GPUS]; /* a handle is the address of its gpu's element */
static int gpus;
static Fact facts[MOST_FACTS];
static int fact_count;
static Event events[MOST_EVENTS];
static int event_count;
static Error errors[MOST_ERRORS];
static int error_count;
static Calls calls[MOST_FUNCTIONS];
static EventSet sets[MOST_SETS];

static _Thread_local long long this_call; /* number of the call that is being answered, on its gpu */

/* -- the script */

static void give_up(const char *what, const char *line) {
    fprintf(stderr, "fake_nvml: %s: %s\n", what, line);
    abort();
}

static When when_of(const char *text) {
    if (!strcmp(text, "always")) return (When){ALWAYS, 0};
    if (!strncmp(text, "call:", 5)) return (When){FROM_CALL, atoll(text + 5)};
    if (!strncmp(text, "only:", 5)) return (When){ONLY_CALL, atoll(text + 5)};
    if (!strncmp(text, "ms:", 3)) return (When){FROM_MS, atoll(text + 3)};
    give_up("no such moment", text);
    return (When){ALWAYS, 0};
}

static void add_gpu(int parent) {
    if (gpus == MOST_GPUS) give_up("too many gpus", "");
    parents[gpus++] = parent;
}

static void add_fact(const char *key, When when, const char *value) {
    if (fact_count == MOST_FACTS || !gpus) give_up("no room for a fact", key);
    Fact *fact = &facts[fact_count++];
    fact->gpu = gpus - 1;
    fact->when = when;
    snprintf(fact->key, sizeof fact->key, "%s", key);
    snprintf(fact->value, sizeof fact->value, "%s", value);
}

static void add_error(const char *function, int gpu, int code, When when) {
    if (error_count == MOST_ERRORS) give_up("too many errors", function);
    Error *error = &errors[error_count++];
    snprintf(error->function, sizeof error->function, "%s", function);
    error->gpu = gpu;
    error->code = code;
    error->when = when;
}

static void read_line(const char *line) {
    char first[64], when[40];
    int gpu, code, read = 0;
    unsigned long long type, data;
    if (!*line) return;
    if (!strncmp(line, "driver ", 7)) snprintf(driver, sizeof driver, "%s", line + 7);
    else if (!strncmp(line, "cuda ", 5)) cuda = atoi(line + 5);
    else if (!strncmp(line, "epoch ", 6)) epoch_ns = atoll(line + 6);
    else if (!strncmp(line, "gpu ", 4)) add_gpu(atoi(line + 4));
    else if (sscanf(line, "fact %39s %39s%n", first, when, &read) == 2 && line[read] == ' ')
        add_fact(first, when_of(when), line + read + 1);
    else if (sscanf(line, "event %llu %llu %39s", &type, &data, when) == 3) {
        if (event_count == MOST_EVENTS || !gpus) give_up("no room for an event", line);
        events[event_count++] = (Event){gpus - 1, type, data, when_of(when)};
    } else if (sscanf(line, "error %63s %d %d %39s", first, &gpu, &code, when) == 4)
        add_error(first, gpu, code, when_of(when));
    else give_up("a line of the script cannot be read", line);
}

static void read_script(const char *path) {
    char line[1024];
    FILE *file = fopen(path, "r");
    if (!file) give_up("the script cannot be read", path);
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        read_line(line);
    }
    fclose(file);
}

/* -- answering */

static long long clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static long long elapsed_ms(void) { return epoch_ns ? (clock_ns() - epoch_ns) / 1000000 : 0; }

static void append(const char *variable, const char *text) {
    const char *path = getenv(variable);
    FILE *file = path ? fopen(path, "a") : NULL;
    if (file) {
        fprintf(file, "%s\n", text);
        fclose(file);
    }
}

static int index_of(const void *handle) {
    ptrdiff_t index = (const int *)handle - parents;
    return handle && index >= 0 && index < gpus ? (int)index : -1;
}

static int holds(When when, long long call) {
    switch (when.kind) {
    case ALWAYS: return 1;
    case FROM_CALL: return call >= when.n;
    case ONLY_CALL: return call == when.n;
    case FROM_MS: return elapsed_ms() >= when.n;
    }
    return 0;
}

static Calls *calls_of(const char *function) {
    for (int i = 0; i < MOST_FUNCTIONS; i++) {
        if (!calls[i].function) calls[i].function = function;
        if (!strcmp(calls[i].function, function)) return &calls[i];
    }
    give_up("too many functions", function);
    return NULL;
}

/* Another script is other gpus, from their first call and millisecond on. */
static void begin_anew(const char *path) {
    loaded = 1;
    gpus = fact_count = event_count = error_count = 0;
    epoch_ns = 0;
    memset(calls, 0, sizeof calls);
    snprintf(script, sizeof script, "%s", path ? path : "");
    if (path) read_script(path);
}

/* What every function begins with: it is counted, and the script may have it fail. */
static int enter(const char *function, const void *handle) {
    pthread_mutex_lock(&mutex);
    const char *path = getenv("FAKE_NVML_SCRIPT");
    if (!loaded || (path && strcmp(path, script))) begin_anew(path);
    append("FAKE_NVML_TRACE", function);
    int gpu = index_of(handle);
    Calls *counted = calls_of(function);
    long long on_any = ++counted->calls[MOST_GPUS];
    this_call = gpu < 0 ? on_any : ++counted->calls[gpu];
    int code = SUCCESS;
    for (int i = 0; i < error_count && !code; i++) {
        const Error *error = &errors[i];
        if (strcmp(error->function, function) || (error->gpu >= 0 && error->gpu != gpu)) continue;
        if (holds(error->when, error->gpu < 0 ? on_any : this_call)) code = error->code;
    }
    pthread_mutex_unlock(&mutex);
    return code;
}

static int enter_device(const char *function, const void *handle) {
    int code = enter(function, handle);
    if (!initialized) return UNINITIALIZED;
    if (code) return code;
    return index_of(handle) < 0 ? INVALID_ARGUMENT : SUCCESS;
}

static const char *text_of(const void *handle, const char *key) {
    const char *found = NULL;
    for (int i = 0; i < fact_count; i++)
        if (facts[i].gpu == index_of(handle) && !strcmp(facts[i].key, key) && holds(facts[i].when, this_call))
            found = facts[i].value;
    return found && strcmp(found, "unsupported") ? found : NULL;
}

static int number(const void *handle, const char *key, unsigned long long *value) {
    const char *text = text_of(handle, key);
    if (!text) return NOT_SUPPORTED;
    *value = strtoull(text, NULL, 10);
    return SUCCESS;
}

static int small_number(const void *handle, const char *key, unsigned *value) {
    unsigned long long large;
    int code = number(handle, key, &large);
    if (!code) *value = (unsigned)large;
    return code;
}

static int copy(char *target, unsigned size, const char *text) {
    if (!text) return NOT_SUPPORTED;
    if (strlen(text) >= size) return INSUFFICIENT_SIZE;
    strcpy(target, text);
    return SUCCESS;
}

/* The functions that answer with one number: their name, the fact's key, the number's type. */
#define ANSWERS(function, key, type)                                        \
    int function(void *device, type *value) {                               \
        int code = enter_device(#function, device);                         \
        unsigned long long answer;                                          \
        if (code || (code = number(device, key, &answer))) return code;     \
        *value = (type)answer;                                              \
        return SUCCESS;                                                     \
    }

/* Those that answer with one number for each type of clock. */
#define ANSWERS_BY_CLOCK(function, prefix)                                                                   \
    int function(void *device, unsigned type, unsigned *megahertz) {                                         \
        static const char *const keys[] = {prefix "graphics_clock", prefix "sm_clock", prefix "memory_clock",\
                                           prefix "video_clock"};                                            \
        int code = enter_device(#function, device);                                                          \
        if (code) return code;                                                                               \
        return type > 3 ? INVALID_ARGUMENT : small_number(device, keys[type], megahertz);                    \
    }

/* -- the library */

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    int code = enter(__func__, NULL);
    if (code) return code;
    if (!epoch_ns) epoch_ns = clock_ns();
    initialized++;
    return SUCCESS;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) {
    int code = enter(__func__, NULL);
    if (!initialized) return UNINITIALIZED;
    initialized--;
    return code;
}

const char *nvmlErrorString(int error) {
    switch (error) {
    case 0: return "Success";
    case 1: return "Uninitialized";
    case 2: return "Invalid Argument";
    case 3: return "Not Supported";
    case 4: return "Insufficient Permissions";
    case 6: return "Not Found";
    case 7: return "Insufficient Size";
    case 9: return "Driver Not Loaded";
    case 10: return "Timeout";
    case 13: return "Function Not Found";
    case 15: return "GPU is lost";
    case 18: return "Driver/library version mismatch";
    case 26: return "Requested functionality has been deprecated";
    case 28: return "GPU not found";
    default: return "Unknown Error";
    }
}

int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    int code = enter(__func__, NULL);
    if (!initialized) return UNINITIALIZED;
    return code ? code : copy(version, length, driver);
}

int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    int code = enter(__func__, NULL);
    if (!initialized) return UNINITIALIZED;
    *version = cuda;
    return code;
}

/* -- which gpus */

int nvmlDeviceGetCount_v2(unsigned *count) {
    int code = enter(__func__, NULL);
    if (!initialized) return UNINITIALIZED;
    *count = 0;
    for (int i = 0; i < gpus; i++) *count += parents[i] < 0;
    return code;
}

static int nth_child(int parent, unsigned n) {
    for (int i = 0; i < gpus; i++)
        if (parents[i] == parent && !n--) return i;
    return -1;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    /* Before the call is counted, so that it counts as one on that gpu; an index beyond all is one on none. */
    int gpu = nth_child(-1, index);
    int code = enter(__func__, gpu < 0 ? NULL : &parents[gpu]);
    if (!initialized) return UNINITIALIZED;
    if (gpu < 0) return code ? code : INVALID_ARGUMENT;
    *handle = &parents[gpu];
    return code;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    int code = enter(__func__, NULL);
    if (!initialized) return UNINITIALIZED;
    for (int i = 0; i < gpus && !code; i++) {
        const char *own = text_of(&parents[i], "uuid");
        if (own && !strcmp(own, uuid)) {
            *handle = &parents[i];
            return SUCCESS;
        }
    }
    return code ? code : NOT_FOUND;
}

int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending) {
    int code = enter_device(__func__, device);
    if (code || (code = small_number(device, "mig_mode", current))) return code;
    *pending = !*current; /* the other one, so that reading the wrong one shows */
    return SUCCESS;
}

ANSWERS(nvmlDeviceGetMaxMigDeviceCount, "max_mig_devices", unsigned)

int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **slice) {
    int code = enter_device(__func__, device);
    if (code) return code;
    int found = nth_child(index_of(device), index);
    if (found < 0) return NOT_FOUND;
    *slice = &parents[found];
    return SUCCESS;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *slice, void **device) {
    int code = enter_device(__func__, slice);
    if (code) return code;
    int parent = parents[index_of(slice)];
    if (parent < 0) return INVALID_ARGUMENT;
    *device = &parents[parent];
    return SUCCESS;
}

/* -- what a gpu is */

int nvmlDeviceGetName(void *device, char *name, unsigned length) {
    int code = enter_device(__func__, device);
    return code ? code : copy(name, length, text_of(device, "product"));
}

int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length) {
    int code = enter_device(__func__, device);
    return code ? code : copy(uuid, length, text_of(device, "uuid"));
}

int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
    int code = enter_device(__func__, device);
    const char *text = code ? NULL : text_of(device, "compute_capability");
    if (code || !text) return code ? code : NOT_SUPPORTED;
    return sscanf(text, "%d.%d", major, minor) == 2 ? SUCCESS : UNKNOWN;
}

int nvmlDeviceGetEccMode(void *device, unsigned *current, unsigned *pending) {
    int code = enter_device(__func__, device);
    if (code || (code = small_number(device, "ecc", current))) return code;
    *pending = !*current;
    return SUCCESS;
}

ANSWERS(nvmlDeviceGetPersistenceMode, "persistence", unsigned)
ANSWERS(nvmlDeviceGetPowerManagementLimit, "power_limit_mw", unsigned)
ANSWERS(nvmlDeviceGetPowerManagementDefaultLimit, "power_default_mw", unsigned)
ANSWERS_BY_CLOCK(nvmlDeviceGetMaxClockInfo, "max_")
ANSWERS_BY_CLOCK(nvmlDeviceGetApplicationsClock, "application_")
ANSWERS_BY_CLOCK(nvmlDeviceGetDefaultApplicationsClock, "default_application_")

/* -- what a gpu does */

ANSWERS_BY_CLOCK(nvmlDeviceGetClockInfo, "")
ANSWERS(nvmlDeviceGetCurrentClocksEventReasons, "clock_reasons", unsigned long long)
ANSWERS(nvmlDeviceGetCurrentClocksThrottleReasons, "clock_reasons", unsigned long long)

int nvmlDeviceGetMemoryInfo(void *device, Memory *memory) {
    int code = enter_device(__func__, device);
    if (code || (code = number(device, "memory_total", &memory->total))) return code;
    if ((code = number(device, "memory_used", &memory->used))) return code;
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(void *device, Utilization *rates) {
    int code = enter_device(__func__, device);
    if (code || (code = small_number(device, "utilization", &rates->gpu))) return code;
    rates->memory = 0;
    return SUCCESS;
}

int nvmlDeviceGetTotalEccErrors(void *device, unsigned type, unsigned counter, unsigned long long *count) {
    (void)counter;
    int code = enter_device(__func__, device);
    return code ? code : type ? number(device, "ecc_uncorrected", count) : NOT_SUPPORTED;
}

/* Millijoules since the epoch at the powers of the script, which must be in the order of their times. */
static unsigned long long power_integral(const void *device) {
    long long now = elapsed_ms(), since = 0;
    unsigned long long microjoules = 0, milliwatts = 0;
    for (int i = 0; i < fact_count; i++) {
        const Fact *fact = &facts[i];
        if (fact->gpu != index_of(device) || strcmp(fact->key, "power_mw") || fact->when.n > now) continue;
        if (fact->when.kind != ALWAYS && fact->when.kind != FROM_MS) continue;
        microjoules += milliwatts * (unsigned long long)(fact->when.n - since);
        since = fact->when.n;
        milliwatts = strtoull(fact->value, NULL, 10);
    }
    return (microjoules + milliwatts * (unsigned long long)(now - since)) / 1000;
}

int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *millijoules) {
    int code = enter_device(__func__, device);
    if (code || !text_of(device, "power_mw")) return code ? code : NOT_SUPPORTED;
    *millijoules = 1000000 + power_integral(device);
    return SUCCESS;
}

/* The binding asks twice, for the number and then for the processes; that counts as one call. */
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, Process *found) {
    int code = found ? SUCCESS : enter_device(__func__, device);
    if (code) return code;
    const char *text = text_of(device, "processes");
    if (!text) return NOT_SUPPORTED;
    unsigned room = found ? *count : 0, n = 0;
    for (; *text && strcmp(text, "none"); n++) {
        char *end;
        Process process = {(unsigned)strtoul(text, &end, 10), ULLONG_MAX, UINT_MAX, UINT_MAX};
        if (strncmp(end, ":-", 2)) process.memory = strtoull(end + 1, &end, 10);
        else end += 2;
        if (n < room) found[n] = process;
        text = *end ? end + 1 : end;
    }
    *count = n;
    return n > room ? INSUFFICIENT_SIZE : SUCCESS;
}

/* -- events */

int nvmlEventSetCreate(void **set) {
    int code = enter(__func__, NULL);
    if (!initialized) return UNINITIALIZED;
    for (int i = 0; i < MOST_SETS && !code; i++)
        if (!sets[i].used) {
            memset(&sets[i], 0, sizeof sets[i]);
            sets[i].used = 1;
            *set = &sets[i];
            return SUCCESS;
        }
    return code ? code : UNKNOWN;
}

int nvmlEventSetFree(void *set) {
    int code = enter(__func__, NULL);
    ((EventSet *)set)->used = 0;
    return code;
}

int nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *set) {
    int code = enter_device(__func__, device);
    if (code) return code;
    ((EventSet *)set)->types[index_of(device)] |= types;
    return SUCCESS;
}

int nvmlEventSetWait_v2(void *handle, EventData *data, unsigned timeout_ms) {
    EventSet *set = handle;
    int code = enter(__func__, NULL);
    if (!initialized) return UNINITIALIZED;
    if (code) return code;
    long long call = this_call, until_ns = clock_ns() + timeout_ms * 1000000LL;
    for (;;) {
        for (int i = 0; i < event_count; i++) {
            const Event *event = &events[i];
            if (set->delivered[i] || !(set->types[event->gpu] & event->type) || !holds(event->when, call)) continue;
            set->delivered[i] = 1;
            *data = (EventData){&parents[event->gpu], event->type, event->data, UINT_MAX, UINT_MAX};
            return SUCCESS;
        }
        long long left_ns = until_ns - clock_ns();
        if (left_ns <= 0) return TIMEOUT;
        nanosleep(&(struct timespec){0, left_ns < 1000000 ? left_ns : 1000000}, NULL);
    }
}
