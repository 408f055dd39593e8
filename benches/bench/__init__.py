"""What `make bench` is made of: one module a question, and what they share."""
