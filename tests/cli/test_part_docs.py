from polyhead.cli.components import parse_docstring


def test_docstring_is_parsed_into_its_parts():
    docs = parse_docstring(
        """Adds 0.5 to x, e.g. to 1 (Su et al., 2021). More about
        that.

        And more: all of it.

        Equation: y = x + 0.5
                  z = y
        When: it is too
              small
        Options:
          half: what is added, or
            taken away
          name: its name
        """
    )
    assert docs.summary == "Adds 0.5 to x, e.g. to 1 (Su et al., 2021)."
    assert docs.text.endswith("\n\nAnd more: all of it.")
    assert docs.fields == {"Equation": "y = x + 0.5\nz = y", "When": "it is too small"}
    assert docs.options == {"half": "what is added, or taken away", "name": "its name"}
    assert parse_docstring(None) == ("", {}, {})
