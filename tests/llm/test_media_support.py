"""Which models are sent which media: what nobody is sure of is not sent."""

from holdfast.domain.models import model_of
from holdfast.llm.providers import media_limits_of
from tests.marks import each_case

PICTURES = {"image/png", "image/jpeg", "image/gif", "image/webp"}
PAPERS = {"application/pdf", "text/plain"}


@each_case(
    ("model", "types"),
    [
        ("openai:gpt-4o", PICTURES | PAPERS),
        ("openai:gpt-4.1-mini", PICTURES | PAPERS),
        ("openai:gpt-5", PICTURES | PAPERS),
        ("openai:o3", PICTURES | PAPERS),
        ("openai:gpt-4-turbo", PICTURES),
        ("openai:gpt-4o-audio-preview", {"audio/wav", "audio/mpeg"}),
        ("openai-responses:gpt-4o-audio-preview", set()),
        ("openai-responses:gpt-5", PICTURES | PAPERS),
        ("openai:gpt-4", set()),
        ("openai:gpt-3.5-turbo", set()),
        ("openai:o3-mini", set()),
        ("openai:o1-mini", set()),
        ("openai:gpt-4o-search-preview", set()),
        ("anthropic:claude-sonnet-4-5", PICTURES | PAPERS),
        ("anthropic:claude-3-haiku-20240307", PICTURES | PAPERS),
        ("anthropic:claude-2.1", set()),
        ("anthropic:claude-instant-1.2", set()),
        ("openrouter:anthropic/claude-sonnet-4.5", PICTURES),
        ("openrouter:meta-llama/llama-4-maverick", PICTURES),
        ("openrouter:meta-llama/llama-3.3-70b-instruct", set()),
        ("openrouter:openai/o3-mini", set()),
        ("azure:gpt-4o", PICTURES),
        ("ollama:llava:13b", PICTURES),
        ("ollama:llama3.2-vision", PICTURES),
        ("ollama:qwen2.5vl:7b", PICTURES),
        ("together:Qwen/Qwen2.5-VL-72B-Instruct", PICTURES),
        ("ollama:gemma3:4b", PICTURES),
        ("ollama:gemma3:1b", set()),
        ("ollama:llama3.2", set()),
        ("groq:llama-3.3-70b-versatile", set()),
        ("deepseek:deepseek-chat", set()),
        ("offline:holdfast", set()),
        ("scripted:gpt-4o", set()),
        ("nobody:gpt-4o", set()),
    ],
)
def test_a_model_takes_what_its_family_is_known_to_take(model: str, types: set[str]) -> None:
    intake = media_limits_of(model_of(model))

    assert set(intake.types if intake else ()) == types


def test_gemini_sees_reads_and_hears() -> None:
    intake = media_limits_of(model_of("gemini:gemini-2.5-flash"))

    assert intake == media_limits_of(model_of("google:gemini-2.5-flash"))
    assert intake is not None
    assert {"image/heic", "application/pdf", "audio/mpeg", "video/mp4"} <= set(intake.types)
    assert "image/gif" not in intake.types
    assert media_limits_of(model_of("google:gemini-embedding-001")) is None


def test_a_picture_for_claude_fits_as_base64_into_what_is_taken() -> None:
    intake = media_limits_of(model_of("anthropic:claude-sonnet-4-5"))

    assert intake is not None
    assert intake.types["image/png"] * 4 / 3 == 5 << 20
    # All of them, with a third more for base64, below the 32 megabytes of a request.
    assert intake.total * 4 / 3 < 32_000_000
