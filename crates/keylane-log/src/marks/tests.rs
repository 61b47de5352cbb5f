use std::fs;

use super::*;

const OWNER: Owner = Owner { identity: 77, boot: [1; 16] };

fn mark(acknowledged: u64, durable: u64) -> Mark {
    Mark { acknowledged, durable }
}

fn open(path: &Path) -> Result<Marks, Error> {
    Marks::open(path.to_owned(), &OWNER, 5, 3)
}

fn create() -> (tempfile::TempDir, PathBuf, Marks) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("5");
    let marks = Marks::create(path.clone(), &OWNER, 5, 3).unwrap();
    (folder, path, marks)
}

#[test]
fn what_was_set_last_is_found() {
    let (_folder, path, mut marks) = create();
    assert_eq!(open(&path).unwrap().get(COMMITS), mark(0, 0));
    for n in 1..5 {
        marks.set([(cell_of(0), mark(n, 0)), (cell_of(2), mark(10 * n, n))]).unwrap();
        let again = open(&path).unwrap();
        let found = [COMMITS, cell_of(0), cell_of(1), cell_of(2)].map(|cell| again.get(cell));
        assert_eq!(found, [mark(0, 0), mark(n, 0), mark(0, 0), mark(10 * n, n)]);
    }
}

#[test]
fn many_cells_are_written_one_by_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("5");
    let mut marks = Marks::create(path.clone(), &OWNER, 5, 1000).unwrap();
    let all = |n| (0..1001).map(move |cell| (cell, mark(n + cell as u64, 0)));
    marks.set(all(1)).unwrap();
    marks.set(all(2)).unwrap();
    let again = Marks::open(path, &OWNER, 5, 1000).unwrap();
    assert!(all(2).all(|(cell, mark)| again.get(cell) == mark));
}

#[test]
fn scenario_27_a_torn_copy_gives_way_to_the_one_before_and_two_are_damage() {
    let (_folder, path, mut marks) = create();
    let cell = cell_of(1);
    marks.set([(cell, mark(4, 4))]).unwrap();
    marks.set([(cell, mark(9, 4))]).unwrap();
    let whole = fs::read(&path).unwrap();
    let first = HEADER_BYTES + cell * CELL_BYTES;
    // Generation 2, the newest, is in the first copy.
    for at in first..first + COPY_BYTES {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        fs::write(&path, &bytes).unwrap();
        assert_eq!(open(&path).unwrap().get(cell), mark(4, 4), "byte {at}");
        bytes[at + COPY_BYTES] ^= 0x10;
        fs::write(&path, &bytes).unwrap();
        let error = open(&path).unwrap_err();
        assert!(error.is_damaged() && error.to_string().contains("queue 1"), "{error}");
    }
}

#[test]
fn a_missing_cut_grown_or_foreign_file_is_damage() {
    let (_folder, path, marks) = create();
    drop(marks);
    let whole = fs::read(&path).unwrap();
    for length in 0..whole.len() {
        fs::write(&path, &whole[..length]).unwrap();
        assert!(open(&path).unwrap_err().is_damaged(), "cut at {length}");
    }
    fs::write(&path, [&whole[..], &[0]].concat()).unwrap();
    assert!(open(&path).unwrap_err().is_damaged());
    for at in 0..32 {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        fs::write(&path, &bytes).unwrap();
        assert!(open(&path).unwrap_err().is_damaged(), "byte {at} of the header");
    }
    fs::write(&path, &whole).unwrap();
    let other = Owner { identity: 78, ..OWNER };
    assert!(Marks::open(path.clone(), &other, 5, 3).unwrap_err().is_damaged());
    fs::remove_file(&path).unwrap();
    let error = open(&path).unwrap_err();
    assert!(error.is_damaged() && error.to_string().contains("missing"), "{error}");
}

#[test]
fn the_acknowledged_end_binds_until_the_machine_starts_anew() {
    let (_folder, path, mut marks) = create();
    marks.set([(COMMITS, mark(1, 1))]).unwrap();
    assert!(open(&path).unwrap().is_of_this_boot(COMMITS));
    let rebooted = Owner { boot: [2; 16], ..OWNER };
    let mut marks = Marks::open(path.clone(), &rebooted, 5, 3).unwrap();
    assert!(!marks.is_of_this_boot(COMMITS));
    assert_eq!(marks.get(COMMITS), mark(1, 1));
    marks.set([(COMMITS, mark(1, 1))]).unwrap();
    assert!(marks.is_of_this_boot(COMMITS));
    let unknown = Owner { boot: NO_BOOT_ID, ..OWNER };
    let mut marks = Marks::open(path, &unknown, 5, 3).unwrap();
    marks.set([(COMMITS, mark(2, 1))]).unwrap();
    assert!(!marks.is_of_this_boot(COMMITS), "without boot ids every start is a new one");
}

#[test]
fn this_machine_has_a_boot_id() {
    if cfg!(target_os = "linux") {
        assert_ne!(boot_id(), NO_BOOT_ID);
    }
    assert_eq!(boot_id(), boot_id());
}
