"""What a network is to learn: the problem between data and network.

A task prepares batches, adds the output layer, and has loss, metrics and signatures;
`supervised` joins an input and a target. Networks are in `models`.
"""
