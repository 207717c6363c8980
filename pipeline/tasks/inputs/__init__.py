"""What is given: each public function creates an `Input` for a field of a source."""
