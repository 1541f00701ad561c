"""What runs inside a server's process, in its interpreter: on the standard library, this package and its own library.

These modules are programs: ``python -m pytest_gpuserve.servers.inside.NAME``. An interpreter that does not have this
package is given it by ``own_package``.
"""
