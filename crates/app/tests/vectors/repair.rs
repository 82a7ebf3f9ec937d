//! Damaged collections, and the report and the effect of `repair`.

use super::*;

/// Regression: a repair that could not save rows ended with success.
#[test]
fn damage_is_told_and_repaired_on_request() {
    let folder = Folder::new("repair");
    let path = folder.collection(COLOURS);
    assert!(printed(&["vectors", "repair", &path]).contains("Nothing is damaged; 4 records are there."));
    let log = Path::new(&path).join("segment-000000.log");
    let mut bytes = fs::read(&log).unwrap();
    let end = bytes.len();
    bytes[end / 2] ^= 1;
    fs::write(&log, &bytes).unwrap();
    for command in ["info", "count", "compact"] {
        let message = refused(&["vectors", command, &path], 1);
        assert!(
            message.contains("segment-000000.log is damaged at byte") && message.contains("vectors repair"),
            "{message}"
        );
    }
    // Rows are lost, so the command fails, and prints the damage.
    let repair = |arguments: &[&str]| {
        let output = command(&[&["vectors", "repair", &path], arguments].concat()).output().unwrap();
        let complaint = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{complaint}");
        (String::from_utf8(output.stdout).unwrap(), complaint)
    };
    let (found, complaint) = repair(&["--json"]);
    assert!(complaint.contains("4 rows cannot be saved"), "{complaint}");
    let found: Value = serde_json::from_str(&found).unwrap();
    assert_eq!((found["damaged"].as_bool(), found["applied"].as_bool()), (Some(true), Some(false)));
    assert_eq!((found["rows_lost"].as_u64(), fs::read(&log).unwrap()), (Some(4), bytes));
    let (text, _) = repair(&[]);
    assert!(text.contains("0 records would be kept, and 4 rows lost") && text.contains("--apply"), "{text}");
    let (text, complaint) = repair(&["--apply"]);
    assert!(text.contains(".damaged behind their names") && complaint.contains("4 rows are lost"), "{text}{complaint}");
    assert_eq!(records(&path), 0);
    assert!(printed(&["vectors", "repair", &path]).contains("Nothing is damaged"));
    printed(&["vectors", "import", &path, &folder.path("rows.jsonl")]);
    assert_eq!(records(&path), 4);
    printed(&["vectors", "delete", &path, "--yes"]);
    assert!(!Path::new(&path).exists());
}

/// Regression: the rows of an import's batch, up to 8 MiB of them, shared one checksum, and one
/// damaged byte cost all of them.
#[test]
fn a_damaged_byte_costs_an_import_no_more_than_1024_rows() {
    const ROWS: usize = 6000;
    let folder = Folder::new("extent");
    let path = folder.path("collection");
    printed(&["vectors", "create", &path, "--dimension", "128", "--metric", "dot"]);
    let file = folder.write("rows.npy", npy(ROWS, 128, |index| index as f32));
    let imported = json_of(&["vectors", "import", &path, &file, "--json"]);
    assert_eq!((imported["rows"].as_u64(), records(&path)), (Some(ROWS as u64), ROWS as u64));
    let rows = Path::new(&path).join("segment-000000.rows");
    let mut bytes = fs::read(&rows).unwrap();
    bytes[3000 * 512] ^= 1;
    fs::write(&rows, &bytes).unwrap();
    let output = command(&["vectors", "repair", &path, "--apply", "--json"]).output().unwrap();
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let lost = found["rows_lost"].as_u64().unwrap();
    assert!((1..=1024).contains(&lost), "{found}");
    assert_eq!(records(&path), ROWS as u64 - lost);
    // The rest has its own vectors.
    let record = json_of(&["vectors", "get", &path, "5999", "--json"]);
    assert_eq!(record["records"][0]["vector"][127].as_f64(), Some((ROWS * 128 - 1) as f64), "{record}");
}
