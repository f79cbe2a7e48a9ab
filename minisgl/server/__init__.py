"""The server: a process that talks to clients, and those behind it."""

from minisgl.server.launch import launch_server

__all__ = ["launch_server"]
