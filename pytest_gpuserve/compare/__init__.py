"""Two results, or two states of the baselines, held against each other.

``python -m pytest_gpuserve.compare A B`` takes A for the reference and judges B. Each is a result file of
``--gpuserve-json``, a baseline file, a folder of baselines, an address of one of them such as
``s3://bucket/baselines``, or ``REV:`` and ``REV:PATH`` for what git has of them.
Exit status: 0 where nothing is worse, 1 where something is, or may be, 2 for a wrong argument or an unreadable file.
"""
