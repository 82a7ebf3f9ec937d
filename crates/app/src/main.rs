//! The `panoply` command; see the library of this package.

fn main() -> std::process::ExitCode {
    panoply_app::main()
}
