"""Work of ``intertwine fold``."""

from .... import symmetry
from ....merging import export
from ...commands.symmetry.fold import FoldOptions
from ...inputs.pairs import card_of, open_group
from ...outputs.files import claim, keep_beside, largest_shard
from ...outputs.show import print_json, say, tell


def run(asked: FoldOptions) -> None:
    """Write the same network in an interpretable gauge."""
    claim(asked.out, [asked.a])
    group = open_group([asked.a], [asked.model], asked, "if given", "cpu")
    steps = (asked.norms, asked.center, asked.biases)
    folded = symmetry.fold(group.models[0], group.example, *steps, extend=asked.extend, strict=asked.strict)
    biases = [name for name in folded.added if name.endswith(".bias")]
    if biases and asked.out.suffix != ".safetensors":
        raise ValueError(
            "--out must end in .safetensors for this model: folding adds biases that its class does not have, such as "
            f"{', '.join(biases[:3])}. Got the folder {str(asked.out)!r}. Or say --no-extend, which adds none."
        )
    recipe = {"folded": group.names, "added": list(folded.added), "command": asked.line}
    made = export(folded.model, asked.out, card_of(group, recipe, {}), largest_shard(asked.a))
    written = keep_beside(asked.a, made)
    if asked.as_json:
        print_json({**folded.to_dict(), "written": written})
    else:
        say(folded.summary())
    tell(f"wrote {written}")
