"""Small networks of many kinds, in float64 and with batch-norm statistics that are not the initial ones."""

import hashlib

import torch
import torch.nn.functional as F
from made import Made
from torch import nn

from intertwine.programs import Program


class ResidualMlp(nn.Module):
    """v2 E.48 (v1 E.27) with every activation a module, so that it can be tapped."""

    def __init__(self, n=6):
        super().__init__()
        self.stem = nn.Linear(4, n)
        self.inner = nn.ModuleList(nn.Linear(n, n) for _ in range(2))
        self.outer = nn.ModuleList(nn.Linear(n, n) for _ in range(2))
        self.relu = nn.ModuleList(nn.ReLU() for _ in range(5))
        self.head = nn.Linear(n, 3)

    def forward(self, x):
        x = self.relu[0](self.stem(x))
        for i, (inner, outer) in enumerate(zip(self.inner, self.outer)):
            x = x + self.relu[2 * i + 2](outer(self.relu[2 * i + 1](inner(x))))
        return self.head(x)


class ProjectedBlock(nn.Module):
    """A residual block whose skip has weights of its own, run after the branch; the additions are in place."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = nn.Conv2d(4, 6, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(6)
        self.conv3, self.bn3 = nn.Conv2d(6, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.skip, self.skip_bn = nn.Conv2d(4, 6, 1, stride=2, bias=False), nn.BatchNorm2d(6)
        self.relu1, self.relu2, self.relu3 = (nn.ReLU(inplace=True) for _ in range(3))
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(6, 3)

    def forward(self, x):
        x = self.relu1(self.bn1(self.conv1(x)))
        y = self.bn3(self.conv3(self.relu2(self.bn2(self.conv2(x)))))
        y += self.skip_bn(self.skip(x))
        return self.head(self.pool(self.relu3(y)).view(x.size(0), -1))


class Tokens(nn.Module):
    """Patches, a class token, positions, attention with heads split by ``view``, a mean over tokens."""

    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, 8, 4, stride=4)
        self.cls, self.position = nn.Parameter(torch.randn(1, 1, 8)), nn.Parameter(torch.randn(1, 5, 8))
        self.norm, self.qkv, self.out = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)
        self.drop, self.mlp = nn.Dropout(0.5), nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        n = x.shape[0]
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(n, -1, -1), x], 1) + self.position
        q, k, v = self.qkv(self.norm(x)).view(n, 5, 3, 2, 4).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, 5, 8)
        x = x + self.drop(self.out(y))
        return self.head((x + self.mlp(x)).mean(1))


def two_heads():
    """Returns a dictionary; the auxiliary head feeds nothing else."""

    def run(m, x):
        x = m.relu(m.body(x))
        return {"logits": m.head(x), "aux": m.aux(x)}

    return Made(run, body=nn.Linear(4, 6), relu=nn.ReLU(), head=nn.Linear(6, 3), aux=nn.Linear(6, 2))


def cnn(width=4, classes=3, size=8):
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, padding=1, bias=False), nn.BatchNorm2d(2 * width), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(2 * width * (size // 2) ** 2, classes),
    )  # fmt: skip


def mlp():
    return nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 3))


KINDS = {
    "mlp": (mlp, (4,)), "residual": (ResidualMlp, (4,)), "cnn": (cnn, (3, 8, 8)),
    "projected": (ProjectedBlock, (3, 8, 8)), "tokens": (Tokens, (3, 8, 8)),
}  # fmt: skip


def make(kind, seed=0):
    """A network of a kind with inputs for it."""
    factory, shape = KINDS[kind]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = factory().double().eval()
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.uniform_(module.weight, 0.5, 1.5)
                nn.init.normal_(module.bias)
                nn.init.normal_(module.running_mean)
                nn.init.uniform_(module.running_var, 0.5, 2)
    return model, torch.randn(9, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + 1))


def fingerprint(model):
    """A hash of everything that a model holds, modes and hooks included."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode() + tensor.cpu().numpy().tobytes())
    for name, module in model.named_modules():
        digest.update(
            f"{name} {module.training} {len(module._forward_hooks)} {len(module._forward_pre_hooks)}".encode()
        )
    return digest.hexdigest()


def labelled(model, x, batch=16):
    """Batches whose labels are the model's own answers."""
    with torch.no_grad():
        labels = model(x).argmax(1)
    return list(zip(x.split(batch), labels.split(batch)))


def is_cut_vertex(program: Program, tap: str) -> bool:
    """Whether the outputs depend on the inputs through a tap only: given its value, they read no input."""
    behind = program.ancestors(program.outputs, [program.taps[tap]])
    return not any(ref in program.inputs for i in behind for ref in program.calls[i].inputs)
