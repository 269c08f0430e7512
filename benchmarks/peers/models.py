"""The embedded model in the formats that peers read: the same values, rounded once, in two bytes each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.peers.place import Place

if TYPE_CHECKING:
    from gguf import GGUFWriter


def make_gguf(place: Place, dtype: str) -> None:
    """Write the model as a GGUF file of ``"bf16"`` or ``"f16"`` matrices, once."""
    import gguf

    from octavo.model.embedded import embedded_file

    path = place.gguf(dtype)
    if path.is_file():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = gguf.GGMLQuantizationType[dtype.upper()]
    source = gguf.GGUFReader(embedded_file())
    unfinished = path.with_suffix(".unfinished")
    writer = gguf.GGUFWriter(unfinished, source.fields["general.architecture"].contents())
    _copy_metadata(source, writer)
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{dtype.upper()}"])
    for tensor in source.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        if values.ndim == 1:  # norms stay f32 in every GGUF file
            writer.add_tensor(tensor.name, values)
        else:
            writer.add_tensor(tensor.name, gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    unfinished.rename(path)


def _copy_metadata(source: Any, writer: GGUFWriter) -> None:
    import gguf

    rewritten = {"general.architecture", "general.file_type", "general.quantization_version"}
    for name, field in source.fields.items():
        if name in rewritten or name.startswith("GGUF."):
            continue
        kind, *elements = field.types
        is_array = kind == gguf.GGUFValueType.ARRAY
        writer.add_key_value(name, field.contents(), kind, sub_type=elements[-1] if is_array else None)


def make_hf_folder(place: Place, peer: str) -> None:
    """Have the peer's environment, which has torch and transformers, write the bf16 Hugging Face folder, once.

    Raises:
        PeerError: it could not.
    """
    from octavo.model.embedded import embedded_file

    folder = place.hf_folder
    if folder.is_dir():
        return
    unfinished = folder.with_suffix(".unfinished")
    command = [str(place.python(peer)), "-m", "benchmarks.peers.convert", str(embedded_file()), str(unfinished)]
    place.run(peer, "model", command, {"HF_HUB_OFFLINE": "1"})
    unfinished.rename(folder)
