"""The tests of this package: a package, so that another one of this name does not come before it."""
