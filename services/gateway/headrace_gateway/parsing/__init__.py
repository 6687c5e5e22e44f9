"""From the text of a choice to what it stands for: answer, reasoning, function calls. Pure; knows no session."""
