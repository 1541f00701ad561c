"""The results in the forms of other tools, one module a form."""
