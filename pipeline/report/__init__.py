"""Reports: `Run`, plots, `report.html`, the comparison of runs.

It computes nothing that is not shown; metrics and tests are in
`evaluation`. `targets` and `inputs` say how examples and predictions look.
"""
