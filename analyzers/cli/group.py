"""A group of commands that knows what was meant."""

import difflib

import click

_WHOLE = 1000
"""More characters than a sentence has."""


class SuggestingGroup(click.Group):
    """Of a name that is none of its commands, names the one that is nearest, or all."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the first argument names, its name, and the other arguments."""
        known = self.list_commands(ctx)
        if args and args[0] not in known and not args[0].startswith("-"):
            close = difflib.get_close_matches(args[0], known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}."
            ctx.fail(f"no such command {args[0]!r}; {hint}")
        return super().resolve_command(ctx, args)

    def short_helps(self, ctx: click.Context) -> list[tuple[str, str]]:
        """Return each command's name and the first sentence of its help."""
        found = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        return [(name, each.get_short_help_str(_WHOLE)) for name, each in found if each is not None]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write them whole: what is too long for a line goes on in the next."""
        with formatter.section("Commands"):
            formatter.write_dl(self.short_helps(ctx))
