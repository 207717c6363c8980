"""Complete experiments: options that suit a kind of data, with results.

A recipe only sets options. Its docstring has its command, its result and the machine.
"""
