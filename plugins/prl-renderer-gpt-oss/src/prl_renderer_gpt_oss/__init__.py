"""The gpt-oss renderer: the harmony format."""
