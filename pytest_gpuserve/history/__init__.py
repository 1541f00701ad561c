"""What each metric was over time: the git history of the baselines, result files, and where the level changed.

``python -m pytest_gpuserve.history [RESULT.json ...]`` reads and changes nothing. Exit status: 0 where there was
something to draw, 1 where there was nothing, 2 for a wrong argument or a file that cannot be used.
"""
