"""Code inside a server's process, in its interpreter: it uses the standard library, this package and its own library.

``with_own_package`` of ``servers/base.py`` makes this package available to an interpreter that does not have it.
"""
