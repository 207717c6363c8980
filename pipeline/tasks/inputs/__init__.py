"""What is given: images, sound, texts, features, rows of tables.

An input decodes a field, prepares it for the network, and reads requests of servers.
"""
