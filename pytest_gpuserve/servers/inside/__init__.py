"""Code inside a server's process, in its interpreter: it uses the standard library, this package and its own library.

These modules are programs: ``python -m pytest_gpuserve.servers.inside.NAME``. ``own_package`` makes this package
available to an interpreter that does not have it.
"""
