"""What authors of stores and codecs need for their tests: batteries that prove a contract, and doubles."""
