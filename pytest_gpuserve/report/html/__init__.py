"""The report for people: one HTML file that needs no network (``--gpuserve-report``)."""
