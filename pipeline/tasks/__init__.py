"""Task definitions: inputs, targets, and what joins them.

A task prepares batches, adds the output layer, and has loss, metrics and signatures;
`supervised` joins an input and a target. Networks are in `models`.
"""
