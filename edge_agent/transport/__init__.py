"""Bytes between processes: local stream sockets, and ZeroMQ to the workers."""
