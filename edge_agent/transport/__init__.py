"""Bytes between processes: frames over local stream sockets."""
