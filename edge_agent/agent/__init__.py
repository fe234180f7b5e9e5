"""The daemon's own process: admits requests, supervises workers and builders, decides."""
