from tests.config.recipe_helpers import recipe_file as recipe_file
