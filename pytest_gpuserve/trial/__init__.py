"""One test's trial: a server started afresh, loaded, measured, compared with its baseline, and recorded.

Here, and only here, servers, load, measure, gate and store meet; nothing here knows pytest.
"""
