"""A small model in a whole pickled module, written by open_clip 2.0.2, with which Task Arithmetic's files were made.

``python -m tests.pipeline.open_clip_made`` writes ``open_clip_2.0.2.pt.xz`` and ``open_clip_2.0.2.safetensors``: some
pixels and what the model makes of them. It needs open_clip_torch 2.0.2 in an environment of its own.
"""

import lzma
import sys
import types
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

VERSION = "2.0.2"
FILE, VALUES = (Path(__file__).with_name(f"open_clip_{VERSION}.{ending}") for ending in ("pt.xz", "safetensors"))
MEAN, STD = (0.5, 0.4, 0.3), (0.27, 0.26, 0.25)
VISION = {"layers": 2, "width": 32, "head_width": 8, "mlp_ratio": 2.0, "patch_size": 8, "image_size": 16}
TEXT = {"context_length": 6, "vocab_size": 12, "width": 16, "heads": 2, "layers": 1}


class ImageEncoder(nn.Module):
    """As the public files have it: the model without its text transformer, and its transforms."""

    def __init__(self, model, preprocess):
        super().__init__()
        self.model, self.train_preprocess, self.val_preprocess = model, *preprocess
        self.cache_dir = None


def main():
    """Write both files."""
    from importlib.metadata import version

    from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg
    from open_clip.transform import image_transform

    if version("open_clip_torch") != VERSION:
        sys.exit(f"open_clip {VERSION} is needed; this is {version('open_clip_torch')}.")
    torch.manual_seed(0)
    model = CLIP(16, CLIPVisionCfg(**VISION), CLIPTextCfg(**TEXT), quick_gelu=True).eval()
    for name in ("ln_pre", "ln_post"):
        nn.init.normal_(getattr(model.visual, name).bias, std=0.1)
    pixels = torch.randn(3, 3, 16, 16)
    with torch.no_grad():
        save_file({"pixels": pixels, "features": model.encode_image(pixels)}, VALUES)
    del model.transformer
    where = types.ModuleType("src.modeling")
    sys.modules |= {"src": types.ModuleType("src"), "src.modeling": where}
    where.ImageEncoder, ImageEncoder.__module__ = ImageEncoder, "src.modeling"
    transforms = [image_transform(16, is_train, MEAN, STD) for is_train in (True, False)]
    with lzma.open(FILE, "wb", preset=9 | lzma.PRESET_EXTREME) as file:
        torch.save(ImageEncoder(model, transforms), file)


if __name__ == "__main__":
    main()
