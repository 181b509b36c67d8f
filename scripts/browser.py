"""Finds Chromium and its driver for the tests that look at HTML reports, or installs Debian's packages."""

import os
import shutil
import subprocess

PACKAGES = ("chromium", "chromium-driver", "fonts-dejavu-core")


class BrowserError(Exception):
    """There is no browser, and none can be installed; the message says what to do."""


def ensure_browser() -> tuple[str, str]:
    """Return the paths of Chromium and of its driver.

    Raises:
        BrowserError: neither can be had.

    """
    if (found := _find()) is None:
        if shutil.which("apt-get") is None or os.geteuid():
            raise BrowserError(f"no chromium and chromedriver here; on Debian: apt-get install {' '.join(PACKAGES)}")
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        command = ["apt-get", "install", "-y", "--no-install-recommends", *PACKAGES]
        if subprocess.run(command, env=quiet, check=False).returncode:
            subprocess.run(["apt-get", "update"], env=quiet, check=False)
            subprocess.run(command, env=quiet, check=False)
        found = _find()
    if found is None:
        raise BrowserError(f"{', '.join(PACKAGES)} could not be installed")
    return found


def _find() -> tuple[str, str] | None:
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None
