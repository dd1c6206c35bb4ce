"""The server: the APIs that people already use, over one engine for each model. Needs the extra `server`."""
