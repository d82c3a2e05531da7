"""The endpoints of OpenAI's API: schemas, validation and responses."""
