"""The system configs that come with minitrain, as JSON; SOURCES.md says where each figure comes from."""
