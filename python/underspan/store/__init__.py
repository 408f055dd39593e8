"""The embedded store: chDB behind ClickHouse's HTTP interface, on loopback.

Run it as ``python -m underspan.store --data DIR --port PORT``. See README.md beside this file for
what of the interface is spoken.
"""
