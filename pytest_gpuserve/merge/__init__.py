"""What several runners have measured of one run, made one: ``python -m pytest_gpuserve.merge A.json B.json ...``.

A suite that takes too long for one machine is dealt out to several, each of which writes a result of its own. This
makes one result of them, with one verdict: exit status 0 where all tests passed, 1 where one did not or pytest was
stopped on a runner, 2 where the results are not those of one run, or cannot be read. The same for the baselines that
they have recorded: ``python -m pytest_gpuserve.merge --baselines DIR1 DIR2 ... --into DIR``.
"""
