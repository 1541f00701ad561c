"""What this machine is, what works on it, and what would disturb a measurement.

``python -m pytest_gpuserve.doctor [--gpu=NAME] [--python=EXE] [--json]`` looks for about a second and changes nothing.
Exit status: 0 where something can be measured, 1 where nothing can, 2 for a wrong argument.
"""
