"""What is wanted: each public function creates a `Target` for a field of a source."""
