"""Messages and tensor frames as bytes: what stands on the local socket and between processes."""
