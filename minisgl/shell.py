"""`python -m minisgl.shell`: a chat in the terminal."""

from minisgl.server import launch_server

# Child processes import this file too.
if __name__ == "__main__":
    launch_server(run_shell=True)
