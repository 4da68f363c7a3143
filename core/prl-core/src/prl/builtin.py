"""Core's own plugin, `prl-core`: the client modes, the Jinja fallback renderer and the core commands."""

from __future__ import annotations

from prl.plugin import ClientModeEntry, CommandEntry, RendererEntry, hookimpl


@hookimpl
def prl_renderers() -> list[RendererEntry]:
    """Offer the renderer for any model that has a chat template; it is never chosen silently."""
    return [
        RendererEntry(
            name="default",
            target="prl.render.jinja_fallback:create",
            options="prl.render.jinja_fallback:JinjaOptions",
            summary="Any chat template, with explicit tool and reasoning parsers",
        )
    ]


@hookimpl
def prl_client_modes() -> list[ClientModeEntry]:
    """Offer tokens-in (`renderer`; `token` over the chat route) and messages-in (`chat`)."""
    return [
        ClientModeEntry(
            name="renderer",
            target="prl.client.modes:create_renderer_mode",
            options="prl.client.modes:RendererModeOptions",
            route="/v1/generate",
            summary="Tokens in, tokens out: prompts are rendered and bridged here",
        ),
        ClientModeEntry(
            name="token",
            target="prl.client.token_mode:create_token_mode",
            options="prl.client.token_mode:TokenModeOptions",
            route="/v1/chat/completions/tokens",
            needs_renderer=False,
            summary="Messages and exact prompt ids in, tokens out: the engine renders what is new",
        ),
        ClientModeEntry(
            name="chat",
            target="prl.client.modes:create_chat_mode",
            options="prl.client.modes:ChatModeOptions",
            route="/v1/chat/completions",
            needs_renderer=False,
            summary="Messages in, tokens out: the engine renders the prompt",
        ),
    ]


@hookimpl
def prl_commands() -> list[CommandEntry]:
    """Offer the core commands; each verb is a file of `prl.cli` and is imported when it runs."""
    verbs = (
        ("plugins list", "plugins_list", "List every installed plugin: version, origin, status, names, load error"),
        ("plugins info", "plugins_info", "Show one plugin in full, with the traceback of its fault"),
        ("plugins freeze", "plugins_freeze", "Print the versions that this installation's plugins have"),
        ("plugins check", "plugins_check", "Run the conformance kit on an installed plugin"),
        ("plugins new", "plugins_new", "Write a new plugin's distribution, which passes the kit"),
        ("doctor", "doctor", "Check the installation and what plugins offer to check"),
        ("render", "render", "Render a conversation to token ids, pieces or JSON"),
        ("parse", "parse", "Read token ids back into an assistant message"),
        ("audit", "audit", "Report where re-tokenising breaks rollouts, why, and what it costs"),
        ("view", "view", "Show rollouts and samples token by token, in the terminal or as HTML"),
        ("serve", "serve", "Serve a model with an engine plugin"),
        ("gateway", "gateway", "Serve an OpenAI-compatible address that records exact tokens"),
        ("config show", "config_show", "Print a command's config, resolved and checked, as TOML"),
        ("config schema", "config_schema", "Print the JSON schema of a command's config"),
    )
    return [CommandEntry(name=name, target=f"prl.cli.{module}:run", summary=text) for name, module, text in verbs]
