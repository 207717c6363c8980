"""Files, locks, safe reading, errors and the console: what any package may import.

It knows no package above it, and nothing about runs or networks.
"""
