"""What starts, loads and judges the demo. The service it runs is in ../service."""
