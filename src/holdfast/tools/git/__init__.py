"""The git tools: git itself, called so that it runs nothing the repository brings along."""
