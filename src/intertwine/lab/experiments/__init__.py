"""Each table and figure of the papers: a plan, a reduction, the paper's numbers beside ours."""
