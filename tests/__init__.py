"""The tests and what they stand on; README.md says where each kind of behaviour is tested."""
