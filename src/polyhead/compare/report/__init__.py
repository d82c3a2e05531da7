"""Tables, charts and pages of a comparison."""
